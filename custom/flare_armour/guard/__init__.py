"""What a party of a provisioned federation takes from the others, and what it drops.

NVFlare 2.9 authenticates connections and does not hold every message to them. The guard does.

- `rules`: who may say what to whom, as a table. What is not in it is dropped.
- `gate`: where every message comes in, asks the rules.
- `commands`: what a site does for its server, and what it does not.
- `sessions`: whose a console's session is, and that it gives the commands of `flare_armour.console_commands` only.
- `disabling`: nothing passes between a running job and a site that the project's admin has disabled.
- `drops`: what was dropped, in the log and in the audit log.
- `component`: named in ``local/resources.json``; installs all this before the process has a connection. If NVFlare is
  not as expected, the process does not start.
"""
