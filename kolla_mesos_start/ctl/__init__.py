"""What people run outside containers. The agent never imports it, and it may need more packages.

Lowest first; each imports only what is above it in this list (`tests/rules/test_house.py` checks that):

    text            text for people: safe on a terminal, folded, durations, suggestions
    directory       a deployment's directory as data
    zk              a deployment's tree in ZooKeeper
    invocation      options, environment, and the connection of one run of the tool
    subcommand      how a subcommand is declared
    validate        what is wrong in a directory
    live            a running deployment as one record, why it is not up, and its metrics
    timeline        how a start went
    manifests       files for launchers
    kolla_ansible   a directory from kolla-ansible's playbooks: a package beside this one
    up              a deployment on this machine
    commands        one file for each subcommand
    cli             the command line, and how it ends
"""
