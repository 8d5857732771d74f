"""A shop whose background work runs in Treadle, through `django.tasks`.

pip install 'treadle[django]'      # Python 3.12 and Django 6
python manage.py migrate           # makes Treadle's tables too
python manage.py order Ada         # or: runserver, and POST to /orders/Ada
python manage.py treadle worker
"""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
