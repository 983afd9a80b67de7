"""Images from a PACS, and results to it: by DICOMweb (PS3.18) or DIMSE (PS3.4 and PS3.7)."""
