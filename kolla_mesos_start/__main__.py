"""python -m kolla_mesos_start: the agent's command line."""

from kolla_mesos_start.main import main

if __name__ == "__main__":
    main()
