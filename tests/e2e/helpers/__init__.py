"""What the end-to-end tests share: the agent's process, clients for it, and a look into /proc."""
