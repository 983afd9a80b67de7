"""A federation by mailbox: rounds as files in a folder that some carrier synchronises, without ports and processes.

``step`` at a party loads its state, does what can be done now, writes files and ends::

    site data → Site → content.py → pieces.py, letter.py → mail_folder.py → the carrier → … → Coordinator

The same `Coordinator` and `Site` run here as under FLARE and in one process. NVFlare is not needed.

==================== =================================================================================================
``party.py``         who a party is (``mailbox.json``), its own folder, and the lock that one step holds
``identity.py``      keys of a party, made from its kit's certificate, and the cards by which others know them
``content.py``       a request or an answer as bytes and back: plain JSON and arrays of numbers
``pieces.py``        such bytes encrypted in pieces, and read again
``letter.py``        the envelope: what belongs to what, signed; the chain of letters in each direction
``mail_folder.py``   files in the shared folder: written whole, partial ones waited for, strange ones named
``thread.py``        the correspondence with one other party: what was sent, read and acknowledged
``site_party.py``    a step of a site
``requests_log.py``  the coordinator's requests since its last closed round, from which a step goes on
``coordinator_party.py`` a step of the coordinator
==================== =================================================================================================
"""
