"""Files for launchers, from a deployment's definitions and its `launch.yml`.

`model` says which containers there are; each format is a module that turns it into files, and decides alone.
"""
