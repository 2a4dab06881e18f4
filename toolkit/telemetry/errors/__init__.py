"""What is told of errors: exceptions, signals and hangs, and where they are looked for."""
