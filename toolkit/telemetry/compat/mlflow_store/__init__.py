"""MLflow's tracking store as run folders: `MLFLOW_TRACKING_URI=telemetry://./logs`; only MLflow imports it."""
