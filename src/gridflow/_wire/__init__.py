"""What travels between driver, agents and training processes, and how it is kept safe."""
