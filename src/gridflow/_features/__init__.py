"""What the driver and the agents do together, beside running tasks: a folder for each such feature.

``driver.py`` decides, from the agents' reports, which commands they get. ``agent.py``, or a module
for each of several things, carries them out beside the training process (`base.Feature`).
"""
