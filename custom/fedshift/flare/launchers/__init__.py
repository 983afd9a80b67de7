"""A site's processes of jobs elsewhere than beside the site's own: in a queue, in a container, as a Pod.

NVFlare 2.9 has launchers of its own for all three. Slurm's is used as it is (`slurm`). Those for Docker and Kubernetes
give a job's process a copy of ``local/``, or one that it cannot write, and bring the kit over a connection: the guard
would come too late, and the site's privacy ledger would forget what was spent. So `docker` and `kubernetes` give the
process the kit itself, at its own path.
"""
