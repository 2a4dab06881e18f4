"""Pages, one file each."""
