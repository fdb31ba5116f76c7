// Cases of test_golden.cpp: what is changed in the standard schedule, and the bits that come out.
{"concurrency", 0x88b8a41010f20012, [](Given&) {}},
    {"every client at work", 0xd3f801024b8d159e, [](Given& g) { g.config.start = FB_START_ALL; }},
    {"every part drawn", 0xecc1b86da097a4c2,
     [](Given& g) {
       g.delays.wait = law(FB_LAW_UNIFORM, 0.0, 0.5);
       g.delays.download = law(FB_LAW_WEIBULL, 1.5, 0.25);
       g.delays.compute = law(FB_LAW_LOG_NORMAL, 0.0, 0.75);
       g.delays.upload = law(FB_LAW_PARETO, 3.0, 0.25);
     }},
    {"normals", 0x8167f17d57d68ced,
     [](Given& g) {
       g.delays.compute = law(FB_LAW_TRUNCATED_NORMAL, 1.0, 0.5, 0.25, 2.0);
       g.delays.upload = law(FB_LAW_HALF_NORMAL, 0.5, 0.125);
     }},
    {"empirical, with speeds", 0xcc7a983d2c7e3354,
     [](Given& g) {
       for (int i = 0; i < 64; ++i) {
         g.numbers[0].push_back(0.25 + i / 64.0);
       }
       for (int i = 0; i < 50; ++i) {
         g.numbers[1].push_back(0.5 + fraction(i));
       }
       g.delays.compute.kind = FB_LAW_EMPIRICAL;
       g.delays.compute.samples = g.numbers[0].data();
       g.delays.compute.n_samples = 64;
       g.delays.speed = g.numbers[1].data();
     }},
    {"equal delays", 0x9af18bebce48315d, [](Given& g) { g.delays.compute = law(FB_LAW_CONSTANT, 1.0); }},
    {"recorded, with failures", 0x7b03f2dd4c54aab7, [](Given& g) { record_rows(g); }},
    {"timeout and staleness", 0xf61440536880915b,
     [](Given& g) {
       g.config.concurrency = 30;
       g.config.max_staleness = 3;
       g.config.timeout = 2.5;
     }},
    {"longest wait", 0xac061175b835c3d1,
     [](Given& g) {
       g.config.buffer_size = 9;
       g.config.max_wait = 0.25;
     }},
    {"rounds", 0xe43686c1917960a1,
     [](Given& g) {
       g.config.start = FB_START_ROUNDS;
       g.config.concurrency = 13;
       g.config.buffer_size = 10;
     }},
    {"windows wait", 0x1b8d9e6dde7262eb, [](Given& g) { open_windows(g, FB_WINDOWS_WAIT); }},
    {"windows pause", 0xf1bb2fdfec715b88, [](Given& g) { open_windows(g, FB_WINDOWS_PAUSE); }},
    {"windows abort", 0x7e4acefff352291c, [](Given& g) { open_windows(g, FB_WINDOWS_ABORT); }},
    {"open loop", 0x193a7fc8a3e37a1a,
     [](Given& g) {
       g.config.start = FB_START_RATE;
       g.config.rate = 8.0;
       g.config.poisson = 1;
     }},
    {"distinct clients", 0xd1c30ebdbee60888, [](Given& g) { g.config.distinct_clients = 1; }},
    {"stop and refill", 0x54ffa6ab3e38babd,
     [](Given& g) {
       g.config.refill = 0;
       g.config.stop_stale = 2;
     }},
    {"restart", 0xba478d00b8e3275f, [](Given& g) { g.config.restart = 1; }},
    {"period", 0xc9795873f296483e,
     [](Given& g) {
       g.config.buffer_size = 40;
       g.config.period = 0.75;
     }},
    {"every client heard", 0x27f00cb0336b0e82,
     [](Given& g) {
       g.delays.n_clients = 8;
       g.config.start = FB_START_ALL;
       g.config.buffer_size = 8;
       g.config.trigger = FB_TRIGGER_EVERY_CLIENT;
     }},
    {"weights and queues", 0x6ca1142523855888,
     [](Given& g) {
       g.delays.n_clients = 4;
       g.numbers[0] = {0.5, 0.25, 0.125, 0.125};
       g.config.concurrency = 9;
       g.config.selection = FB_SELECT_WEIGHTED;
       g.config.probability = g.numbers[0].data();
       g.config.queues = 1;
     }},
    {"longest idle, capped", 0x26786d46b3914b3c,
     [](Given& g) {
       g.config.selection = FB_SELECT_LONGEST_IDLE;
       g.config.max_uses = 7;
     }},
    {"a server that needs time, a shared uplink", 0x9e255c23577f7b83, [](Given& g) {
       g.delays.upload = law(FB_LAW_EXPONENTIAL, 0.5);
       g.config.server_needs_time = 1;
       g.config.server_time = law(FB_LAW_CONSTANT, 0.125);
       g.config.uplink = 2;
     }},
