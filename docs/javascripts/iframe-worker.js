// Pages that open from disk have no workers, and the search of the site needs one: here a worker is a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = []; // messages before the worker listens
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => setTimeout(() => this.hear(data));
      this.inside.importScripts = async (...names) => {
        for (const name of names) await this.load(new URL(name, url));
      };
      this.load(url).then(() => {
        const said = this.waiting;
        this.waiting = null;
        said.forEach((data) => this.say(data));
      });
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        Object.assign(script, { src: url, onload: done, onerror: failed });
        this.inside.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.say(data);
    }

    say(data) {
      setTimeout(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
