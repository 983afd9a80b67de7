"""Secure aggregation with pairwise masks: the server sees only the sum, exact to the bit, and no key is shared.

Set with ``federation.encryption: masks``. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", CCS 2017, with the changes named below. A job has sites i, k, …; n of them have a key in a round r, and
t = max(2, ⌈2n/3⌉).

1. **Keys.** With its first answer (round 0) each site sends an X25519 public key made for this job, signed with the key
   of its kit, and its certificate. The message of every training round holds these keys. A site checks them: signed
   for this job, by the site that is named, with a certificate of the project's owner. A site that comes later sends its
   key with its first answer and takes part from the next round on.
2. **Masked update.** D is a hash of the round's whole message: round, weights, arrays, keys. Each pair has a seed
   s_ik = HKDF(X25519(i, k), job, r, D, i, k), and each site a seed b_i = HKDF(its secret, job, r, D, x_i). A stream
   G(seed) is AES-256 in counter mode, read as whole numbers of 64 bits. x_i is the site's vector (`VectorLayout`) in
   whole steps of 2⁻³² (`primitives`). The site sends, modulo 2⁶⁴::

       y_i = x_i + G(b_i) + Σ_{k>i} G(s_ik) − Σ_{k<i} G(s_ik)

   and for every site k, encrypted for it (AES-256-GCM), a Shamir share of b_i and of each s_ij, of which any t rebuild
   the secret (`primitives`); and hashes of all shares and secrets, so that a wrong one is found and its sender named.
3. **Unmasking.** When the round's updates are in and checked, the server fixes U, the sites whose updates are
   accepted, and asks each of them (task ``unmask``). Site k gives its share of b_i for every i in U, and its share of
   s_id for every i in U and d not in U. It answers one such question a round, and repeats that answer; it refuses a U
   with fewer than t sites, with fewer than its own policy or the job wants (m, the larger of
   ``privacy.min_sites_in_sum`` and ``min_sites``), without itself, or with a share that i has not encrypted for it in
   reply to the same message D.
4. **Sum.** With t answers the server rebuilds these seeds and subtracts their streams. The s_ij between two members of
   U, which it can't rebuild, cancel. What is left is Σ_U x_i, to the bit, and the server halves of all methods run on
   it as on ciphertexts. Weights and model files are readable at the server, as without masks.

Fewer than t answers end the run as a lost quorum does. A job of FLARE that has ended so can't go on, since its keys are
signed for its id; a simulated run can be resumed, and a server whose process was killed goes on by itself. The same
sites must then be in U, as they answer for no others: the server writes U down before it asks (``unmasking.json``).

**What a server that follows no rules can learn.** It can tell sites different U, or send them different messages.

- Different messages in one round give different D: masks don't cancel and shares don't decrypt. All updates in a sum
  started from the same weights.
- To bare a sum over S the server needs, for each i in S, b_i: t sites that were told of a U with i. And for each i in
  S and j outside, s_ij: t sites that were told of a U with i and without j. (A U with j and without i would give shares
  on another polynomial, that of j, and t sites with such a U leave fewer than t for b_i, since 2t > n and each site
  answers once.) At most n sites have an i of S in their U, and each U leaves out at most n − t sites, so
  (n − |S|)·t ≤ n·(n − t), that is |S| ≥ n·(2t − n)/t: half of the sites or more, and always two. With m = n no honest
  site gives a seed of a pair, and the only sum is over all.
- The server chooses which keys it sends, and so n, down to m: a site masks nothing with fewer than m keys. The keys are
  those of the job's sites, each signed with the kit of the site that it names, so the server can't make up others.
- Two answers of one round over different U would give the difference of two sums. So a site answers once a *round*, not
  once a message.
- c sites that help the server can answer as often as it likes. Then there are these ways to one site's update, for any
  n from m to the number of the job's sites (`protocol.helpers_needed` is the fewest over all of them):

  - all others of the sum help: n − 1;
  - t sites help, which rebuild all secrets from their own shares; so they do with a server that keeps to the rules;
  - if m < n, the seeds of pairs are given by honest sites that were told of different U: as long as 2t > n + c that
    tells nothing.

  With m = 2 one helper is enough, with m = 3 two are and one never is, whatever n. More than two are needed only if m
  is (nearly) the number of the job's sites: three of four, four of five or six.

**What masks don't do.** Whoever has the root key of the project can make certificates and stand between sites. Not
masked: counts of samples and steps, batch counters, losses and scores, names and times. A sum over two sites tells each
of them the other's. Sums of several rounds over different sites can be compared, and the model reveals what a model
reveals: noise (`fedshift.federation.site.privacy`) is applied before the mask, and both can be used together. The
server can't check single updates, so a hostile site can send any numbers. In one process and in FLARE's simulator there
are no kits: keys are not signed, which the log says.

**Unlike the paper**: one question instead of two, so no signed list of U (its step 3, "ConsistencyCheck"); the counting
above takes its place. Shares are of the round's seeds s_ij, not of the site's private key, so that keys serve for the
whole job. b_i comes from a secret and the content, so that a repeated task has the same bytes, and another content
another mask.

Modules: `primitives` (arithmetic and keys), `protocol` (what both sides must agree on), `site` and `server`.
"""
