"""Who may open the dashboard: tokens, logins and roles."""
