"""Records as tables that grow, behind one protocol."""
