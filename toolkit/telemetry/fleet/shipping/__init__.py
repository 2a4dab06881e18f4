"""The shipper: finds run folders, sends what is new in them to each shard, and delivers requests."""
