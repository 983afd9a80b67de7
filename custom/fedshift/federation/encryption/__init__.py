"""Homomorphic encryption of updates: the server adds ciphertexts that it cannot decrypt.

Set with ``federation.encryption: ckks``: CKKS (Cheon et al., "Homomorphic Encryption for Arithmetic of Approximate
Numbers", ASIACRYPT 2017) as implemented by TenSEAL, with the keys that FLARE's HEBuilder puts into the kits. All sites
share one secret key; the server has none.

A site concatenates everything that is to be summed into one vector. f_k is the site's factor (`Server.factor`; for
FedAvg its sample count, or 1)::

    f_k · floating tensors of the network      arrays of methods with reduce="sum"      the arrays it received of these

The third part makes the sum self-contained: a site that was absent can use it without knowing which received arrays
the sent ones are relative to. The server adds the ciphertexts in site order and sends their sum with the sum of f_k and
the number of sites. Each site decrypts the sum and then does what the server would have done with it: the server halves
of all methods run at every site, with the same result everywhere because all decrypt the same bytes.

Not encrypted are the initial model, batch counters, counts of samples and steps, losses and scores. The model files
that the server writes are ciphertexts; a site makes them readable with `decrypt_model` (module `site`).

Encryption draws random numbers, so the bytes differ between runs, and a sum is approximate: with FLARE's default keys
the error of one ciphertext is about 2⁻²⁷.

Modules: `keys` (TenSEAL, imported only where keys are used), `vector` (the layout of the vector, and what the server
halves make of a sum), `site` and `server`.
"""
