"""What guards and mends NVIDIA FLARE 2.9: its messages, its console, its processes. It knows nothing of images.

docs/armour.md shows how a project uses it:

- `guard`: what a party takes from the others, as tables; what is not in them is dropped. `guard.component.Guard` is the
  component of ``local/resources.json`` that puts all this in place.
- `patches`: replacements for parts of NVFlare that are not public, each with its kind in one table.
- `pieces`: large models in pieces that are acknowledged and kept on disk.
- `protected`: what protects one job's process, as a context.
- `restart`, `readmission`: killed processes are started again, and late sites join.

It logs as ``flare_armour``.
"""
