"""MLflow's own tests with our tracking store in place of MLflow's, and the cost of its calls."""
