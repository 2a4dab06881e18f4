"""Containers that several formats share: TFRecord, LevelDB log, protobuf fields, SQLite."""
