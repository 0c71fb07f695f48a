"""Training processes that start warm.

A *fork server* imports TensorFlow and Keras once, initialises nothing, and forks a training
process for each request of an agent: `client` asks, `server` serves, `child` is what happens after
the fork, `safety` says when forking would be wrong, `fingerprint` who may share a server,
`messages` how the two talk. The server is a process of its own; agents never import what it
imports.
"""
