// The image's own service. The agent hands on SIGTERM; ending on it makes `docker stop` quick.
const http = require("http");
const server = http.createServer((request, response) => response.end("hello\n"));
server.listen(3000, () => console.log("listening on 3000"));
process.on("SIGTERM", () => process.exit(0));
