"""What a party of a provisioned federation takes from the others, and what it drops.

NVFlare 2.9 authenticates connections and does not hold every message to them. The guard does.

- `rules`: who may say what to whom, as a table. What is not in it is dropped.
- `gate`: where every message comes in, asks the rules.
- `orders`: what a site does for its server, and which files a job may bring.
- `console`: who may give which command of the console, as a table; whose a session is.
- `disabling`: nothing passes between a running job and a site that the project's admin has disabled.
- `component`: named in ``local/resources.json``; puts all this in place before the process has a connection. If NVFlare
  is not as expected, the process does not start.
"""
