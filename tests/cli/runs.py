from tests.made_runs import log_run as write_run
from tests.made_runs import write_table

__all__ = ["write_run", "write_table"]
