#!/bin/sh
# A search by DICOMweb with a wildcard, sent by a client that encodes the address as browsers' forms do, finds nothing.
#
# Expected: SeriesDescription=t2%2A means t2*, since what is encoded in a query is decoded before it is looked at
# (RFC 3986, 2.1 and 2.4), and finds the series t2_tse_tra, as SeriesDescription=t2* does.
# Seen: Orthanc's DICOMweb plugin compares with the letters %2A, and so dicomweb-client, which encodes the star, finds no
# series by any wildcard, without an error.
# Versions: Orthanc 1.10.1 with its DICOMweb plugin 1.7 (Debian 12), dicomweb-client 0.61.2.
#
# Needs Orthanc: apt-get install --no-install-recommends orthanc orthanc-dicomweb. What it stores is in a temporary folder.
set -eu
plugin=/usr/share/orthanc/plugins/libOrthancDicomWeb.so
[ -e "$plugin" ] || { echo "needs apt-get install --no-install-recommends orthanc orthanc-dicomweb"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q dicomweb-client==0.61.2 pydicom==3.0.2 requests==2.34.2
FOLDER="$folder" PLUGIN="$plugin" "$folder/venv/bin/python" - <<'PYTHON'
import io
import json
import os
import socket
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import pydicom
import requests
from dicomweb_client.api import DICOMwebClient
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

folder = Path(os.environ["FOLDER"])
image = pydicom.Dataset()
image.file_meta = pydicom.dataset.FileMetaDataset()
image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
image.SOPClassUID, image.SOPInstanceUID, image.Modality = MRImageStorage, generate_uid(), "MR"
image.StudyInstanceUID, image.SeriesInstanceUID = generate_uid(), generate_uid()
image.PatientID, image.SeriesDescription = "NOBODY", "t2_tse_tra"
image.Rows = image.Columns = 2
image.BitsAllocated = image.BitsStored = 8
image.HighBit, image.SamplesPerPixel, image.PixelRepresentation = 7, 1, 0
image.PhotometricInterpretation, image.PixelData = "MONOCHROME2", b"\0\1\2\3"
content = io.BytesIO()
image.save_as(content, enforce_file_format=True)

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
settings = {"StorageDirectory": str(folder / "store"), "IndexDirectory": str(folder / "store"), "HttpPort": port}
settings |= {"Plugins": [os.environ["PLUGIN"]], "DicomServerEnabled": False, "RemoteAccessAllowed": False}
(folder / "orthanc.json").write_text(json.dumps(settings))
root = f"http://127.0.0.1:{port}"
with (folder / "log").open("w") as log:
    server = subprocess.Popen(["/usr/sbin/Orthanc", str(folder / "orthanc.json")], stdout=log, stderr=log)
try:
    for _ in range(100):
        time.sleep(0.1)
        try:
            system = requests.get(f"{root}/system", timeout=5).json()
            break
        except requests.ConnectionError:
            pass
    plugin = requests.get(f"{root}/plugins/dicom-web", timeout=5).json()
    print("Orthanc", system["Version"], "DICOMweb", plugin["Version"], "dicomweb-client", version("dicomweb-client"))
    requests.post(f"{root}/instances", data=content.getvalue(), timeout=5).raise_for_status()
    found = {}
    for text in ("t2*", "t2%2A"):
        address = f"{root}/dicom-web/studies/{image.StudyInstanceUID}/series?SeriesDescription={text}"
        found[text] = len(requests.get(address, timeout=5).json())
        print(f"SeriesDescription={text}: {found[text]} series")
    client = DICOMwebClient(f"{root}/dicom-web")
    by_client = len(client.search_for_series(image.StudyInstanceUID, search_filters={"SeriesDescription": "t2*"}))
    print(f"dicomweb-client, asked for t2*: {by_client} series")
finally:
    server.terminate()
    server.wait()
assert found == {"t2*": 1, "t2%2A": 0}, "an encoded star is a star by now"
assert by_client == 0, "the client finds the series by now"
PYTHON
