"""UI components that several pages share."""
