"""The parts of the page *Time and machine*: figures of the hardware, ranks, spans and events."""
