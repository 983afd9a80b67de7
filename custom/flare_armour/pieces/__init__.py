"""Large models between a server and its sites, in pieces that are acknowledged and kept on disk.

NVFlare 2.9 sends a message as one stream, which begins again when the line is cut or either process ends, and holds it
in memory. Here a message whose arrays have `array_files.LARGE` bytes or more leaves its arrays in a file, and takes
only their places along:

- `array_files`: takes the arrays out of a message and puts them back.
- `held_file`: the receiving end of a file, which grows in order; what it holds outlives the process.
- `site_end`: sends the file of an answer, piece by piece, and fetches that of a task.
- `server_end`: takes the sites' pieces, and hands out those of the task.
- `shared_disk`: either end in FLARE's simulator, which hands the file over by its name.
- `wire`: the two requests, which sites make, and what they may hold.
- `transfer_log`: how far a transfer is, in the log.

A file is known by its SHA-256, so that after a cut or a restart both ends go on with the same one, and nothing reads it
before its digest is right. The arrays are then mapped from the file. FLARE's filters see them: they are taken out after
a site's filters, and put back before the server's.
"""
