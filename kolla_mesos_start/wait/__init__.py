"""The wait stage: decides which command may run next, and waits until one may."""
