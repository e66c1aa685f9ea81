"""Print the folder of each named set: ``python -m deploy.jars broker spark``."""

import sys

from deploy.jars import cached_folder

for name in sys.argv[1:]:
    print(cached_folder(name))
