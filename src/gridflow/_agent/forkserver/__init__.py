"""Warm starts of training processes.

A *fork server* imports TensorFlow and Keras once, initialises nothing, and forks a training process
for each request of an agent. `client` requests, `server` serves, and `child` runs after the fork.
`safety` decides whether forking is safe, `fingerprint` who may share a server, and `messages` is
their protocol. The server is a process of its own; agents never import what it imports.
"""
