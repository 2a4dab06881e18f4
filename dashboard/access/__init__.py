"""Who may come in where the dashboard is more than a page on one's own machine, and who of them may only look."""
