// The checks of stomp-checks.mjs in Node.
import { Client } from '@stomp/stompjs';
import WebSocket from 'ws';
import { checks } from './stomp-checks.mjs';
import { say, free, out } from './stomp-side.mjs';

Object.assign(globalThis, { WebSocket });
await checks({ Client, base: process.argv[2], out, say, free });
process.exit(0);
