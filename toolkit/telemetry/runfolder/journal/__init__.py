"""The journal that makes records durable without a sync for each, and the repair of a run folder."""
