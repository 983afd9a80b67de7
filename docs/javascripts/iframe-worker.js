// Search in pages opened from a disk: browsers start no worker there, so its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.reply = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.started = new Promise((resolve) => (frame.started = resolve));
      frame.contentDocument.open();
      frame.contentDocument.write(
        `<script>postMessage = frameElement.reply</script>` +
          `<script src="${url}" onload="frameElement.started()"></script>`,
      );
      frame.contentDocument.close();
    }

    postMessage(data) {
      this.started.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
