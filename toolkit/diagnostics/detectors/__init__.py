"""One file a detector. No detector knows another; `toolkit.diagnostics.examiner` has the list."""
