"""How agents are started on a target."""
