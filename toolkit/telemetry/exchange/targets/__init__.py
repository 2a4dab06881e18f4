"""What a run can be exported to: one file a format; a format does not import another."""
