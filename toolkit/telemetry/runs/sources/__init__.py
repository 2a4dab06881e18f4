"""Where runs come from: folders, files of other tools, ClickHouse."""
