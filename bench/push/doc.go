// Command push compares usher's push with its peers, in one run on one machine, and prints ratios:
//
//   - idle memory: RSS of the server process for each connection, after a forced garbage collection;
//   - accept: CPU of the server process for each connection taken on (with STOMP's CONNECT and SUBSCRIBE for usher,
//     the connect command for centrifuge);
//   - broadcast: CPU of the server process for each frame, and the time from the call to the last client's frame;
//   - usher alone: a drain (the rate that was set, and the one that clients saw) and a storm (all sockets cut at once:
//     when clients that keep to the window are back).
//
// Peers: gorilla/websocket as its chat example has it (two goroutines) and tuned (one, small buffers, prepared
// messages); centrifugal/centrifuge with its defaults and tuned. Every server is a process of its own on loopback. On
// loopback the receiver's share of the kernel's work is charged to the sender. Run it from bench/:
//
//	go run ./push -conns 15000 -rounds 5
package main
