// The search of the site runs in a worker; from the disk browsers start none, so a hidden frame it is.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.told = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.onload = () => {
        for (const data of this.waiting) this.tell(data);
        this.waiting = null;
      };
      this.frame.srcdoc =
        "<script>postMessage = (data) => frameElement.told(data)</script>" +
        `<script src="${new URL(url, location)}"></script>`;
      document.body.append(this.frame);
    }

    postMessage(data) {
      if (this.waiting === null) this.tell(data);
      else this.waiting.push(data);
    }

    tell(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
