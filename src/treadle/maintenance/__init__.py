"""Periodic maintenance, run by one elected worker on behalf of all."""

from treadle.maintenance.duties import Maintenance
from treadle.maintenance.leader import Leader
from treadle.maintenance.reaper import Reaper
from treadle.maintenance.retention import Retention
from treadle.maintenance.scheduler import Scheduler

__all__ = ["Leader", "Maintenance", "Reaper", "Retention", "Scheduler"]
