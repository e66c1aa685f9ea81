"""``cdc verify``: proof that a derived table equals its source, at one exact position.

``forms`` says how a row becomes a text that both sides print alike, ``sides`` what either side
answers, ``compare`` finds the keys that differ, ``derived`` is our side, ``run`` ties it together.
The source's side is the connector's.
"""
