"""What has to happen now and then, wherever a worker runs: one leader at a time does it for all."""

from treadle.maintenance.duties import Maintenance
from treadle.maintenance.leader import Leader
from treadle.maintenance.reaper import Reaper
from treadle.maintenance.retention import Retention

__all__ = ["Leader", "Maintenance", "Reaper", "Retention"]
