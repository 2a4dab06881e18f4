from tests.git_once import git_is_asked_once

__all__ = ["git_is_asked_once"]
