// Browsers start no worker from file://. There, the search worker is started from its text,
// which checks/docs_site.py writes into search/worker.js.
if (location.protocol === "file:") {
  const worker = new Blob([searchWorker], {type: "text/javascript"});
  window.Worker = class extends window.Worker {
    constructor() {
      super(URL.createObjectURL(worker));
    }
  };
}
