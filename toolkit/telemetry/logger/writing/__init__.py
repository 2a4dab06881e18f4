"""Gets acknowledged lines to the disk and to whatever follows the file."""
