-- A ledger of version 3. Its accounts as the code of its time reported them (spent ε and δ, of the
-- ceiling), and the receipts that its node gave:
-- account ward add-remove 3.5330452792483955 2e-06 of 20.0 0.0001
-- account ward replace-one 4.0 0.0 of 10.0 0.0
-- account ward client 3.410233971202639 2e-06 of 30.0 0.0001
-- account clinic add-remove 1.3557398434300783 1e-05 of 8.0 1e-05
-- receipt bc279f1030c78b1d3c3ab18ea42f72c9c8f8cc45382d922732e000bbc7e452c6aff29071ec2e8360
-- receipt 34d53fee028a01d2412ec27cc8052429ab46e3c72c5005c6a4161ad64a415be7fe8106e1578fac6f
-- receipt 5a0fc2e967d2d9b5d338e16efc88135e079c7f60db86706f1cf1c331b5f2ed02c8b42b02c64222bc
-- receipt ea29bde28c6209d27a35b9393a41c1ecdf1bdb7261b8d6098388d0810162951c68a212b85fb876d6
--
-- Made with the code of commit f95cfb49 by this script, then dumped by sqlite3's iterdump:
--
-- import json, os, shutil
-- from dataclasses import replace
-- from pathlib import Path
--
-- import torch
-- from fedsink.clients.answers import find_answer
-- from fedsink.clients.ledger import admission
-- from fedsink.clients.node import Node, _open_ledger, close_nodes
-- from fedsink.clients.node_settings import NodeSettings
-- from fedsink.clients.policy_file import read_policy
-- from fedsink.clients.rollback import Receipts
-- from fedsink.data import sources
-- from fedsink.data.maps import PointBall
-- from fedsink.privacy import BatchClip, ClassSchedule, JointSchedule, PrivacyPlan, RecordClip
-- from fedsink.privacy.fixed_point import FixedPoint
-- from fedsink.protocol.dp_sinkhorn import GradientRequest
-- from fedsink.protocol.objective import Objective
-- from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest
--
-- admission.time.time = lambda: 20_000 * 86_400.0
-- here = Path("node")
-- shutil.rmtree(here, ignore_errors=True)
-- (here / "state").mkdir(parents=True)
-- (here / "state" / "receipt.key").write_text(json.dumps({"run": "ward", "secret": "07" * 32}) + "\n")
-- os.chmod(here / "state" / "receipt.key", 0o600)
--
-- POLICY = """
-- [data]
-- lineage = "LINEAGE"
-- name = "LINEAGE"
-- shape = [4]
-- classes = ["a", "b", "c"]
-- nominal_records = 64
-- [state]
-- folder = "state"
-- [noise]
-- backend = "secure"
-- BUDGETS
-- [allow]
-- mechanisms = ["clipped-gaussian", "laplace", "randomized-response"]
-- minimum_noise_multiplier = 0.5
-- maximum_clip_bound = 0.5
-- maximum_images = 12
-- secure_aggregation = "trusted"
-- runs_per_day = 5
-- """
-- BUDGETS = {
--     "ward": """[budget.add-remove]
-- epsilon = 20.0
-- delta = 1e-4
-- [budget.client]
-- epsilon = 30.0
-- delta = 1e-4
-- rounds_per_reservation = 4
-- [budget.replace-one]
-- epsilon = 10.0
-- delta = 0.0
-- """,
--     "clinic": """[budget.add-remove]
-- epsilon = 8.0
-- delta = 1e-5
-- admission = "rdp-filter"
-- order = 8.0
-- [budget.replace-one]
-- epsilon = 10.0
-- delta = 0.0
-- """,
-- }
--
--
-- def points(seed):
--     random = torch.Generator().manual_seed(seed)
--     return lambda spec, split: (torch.randn(61, 4, generator=random.manual_seed(seed)), torch.arange(61) % 3)
--
--
-- sources.SOURCES["ward"], sources.SOURCES["clinic"] = points(1), points(2)
--
--
-- def node(lineage, clients=3):
--     close_nodes()
--     path = here / f"{lineage}.toml"
--     path.write_text(POLICY.replace("LINEAGE", lineage).replace("BUDGETS", BUDGETS[lineage]))
--     return Node(NodeSettings.from_policy(read_policy(path), clients=clients), 0)
--
--
-- def asked(plan, run, round, share=1):
--     random = torch.Generator().manual_seed(round)
--     label = None if isinstance(plan.schedule, JointSchedule) else plan.schedule.label(0, round)
--     labels = torch.arange(6) % 3 if label is None else torch.full((6,), label)
--     grid = None if share == 1 else FixedPoint(granularity=2.0**-20, bits=40, radius=2.0**10)
--     draw = lambda *shape: torch.randn(*shape, generator=random)
--     request = GradientRequest(
--         round, label, plan, Objective(lam=0.5, classes=3), {"name": "pixel", "shape": [4]},
--         draw(6, 4), labels, draw(6) / 10, draw(6, 4) / 10, run,
--     )
--     return "train.dp_sinkhorn", replace(request, share=share, fixed_point=grid).to_record()
--
--
-- PLAN = PrivacyPlan(0.25, 2.0, 12, RecordClip(0.5), ClassSchedule(3), 1e-6)
-- CLIENT = PrivacyPlan(1.0, 4.0, 12, BatchClip(0.5), JointSchedule(), 1e-6, adjacency="client")
-- LOCAL = LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3)
-- shown = []
--
--
-- def receipt(node):
--     shown.append(node.given(()).receipt)
--
--
-- ward = node("ward")
-- receipt(ward)
-- for round in (1, 2, 3):
--     ward.answer(*asked(PLAN, "whole", round))
-- receipt(ward)
-- kind, record = asked(PLAN, "whole", 4)
-- answer = find_answer(kind, ward._policy).read(record, ward._policy)
-- ward.admit(answer, answer.digest(record))  # charged, and the process ends before the reply
-- ward.answer(*asked(replace(PLAN, rounds=6, schedule=JointSchedule()), "shared", 1, share=2))
-- ward.answer("train.privatize_once", PrivatizeRequest(LOCAL, 0, 61, "upload").to_record())
-- for round in (1, 2, 3, 4, 5):
--     ward.answer(*asked(CLIENT, "parts", round))
-- receipt(ward)
-- clinic = node("clinic")
-- for plan, rounds in ((PLAN, (1, 2)), (replace(PLAN, noise_multiplier=3.0), (3, 4))):
--     for round in rounds:
--         clinic.answer(*asked(plan, "free", round))
-- for refused in ("BudgetError", "BudgetError", "RunTakenError"):
--     _open_ledger(clinic.settings).note_refused(refused)
-- receipt(clinic)
-- close_nodes()

PRAGMA user_version=3;
BEGIN TRANSACTION;
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, lineage TEXT NOT NULL, adjacency TEXT NOT NULL,
    admission TEXT NOT NULL, alpha REAL, seal BLOB NOT NULL,
    UNIQUE (lineage, adjacency));
INSERT INTO "accounts" VALUES(1,'ward','add-remove','reserve',NULL,X'9CEDD6804474E85B766F33024064E03FAE8AC755A8EB947ACBF721AC240B273A');
INSERT INTO "accounts" VALUES(19,'ward','replace-one','reserve',NULL,X'54A23BE47F2738AA34EADB18184FF713B26D71E4EFE20D1E2126C6F3066E89FC');
INSERT INTO "accounts" VALUES(26,'ward','client','reserve',NULL,X'4B26AF448BF779E2E05EB785BD711BA0DE99DE478EAE3E8215AEA30FC1C4C27A');
INSERT INTO "accounts" VALUES(42,'clinic','add-remove','rdp-filter',8.0,X'CA2D67A13E2B001166155ECC88F9D122503FAA1F7B74C447EB4AC8F23F3B91A8');
CREATE TABLE ceilings (
    number INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts,
    epsilon REAL, delta REAL, seal BLOB NOT NULL);
INSERT INTO "ceilings" VALUES(2,1,20.0,0.0001,X'620F2ACD1A15FF3FA6F5D6C615D71C9B12FA3656769962458943662BBAB20C66');
INSERT INTO "ceilings" VALUES(20,19,10.0,0.0,X'758A147DF1F79DD73273FEDFD4AC16870306CFF5642A7EC37FC5C2897C143522');
INSERT INTO "ceilings" VALUES(27,26,30.0,0.0001,X'CF89EDEF2E93A9F95628E63CEC162DEA204BA1C4FC3650051E6917E6D5F84138');
INSERT INTO "ceilings" VALUES(43,42,8.0,1.0e-05,X'46AEB61CFF391287C86F0E56E23AB5085E07A1CC66BB2F52845A2FC21752D79F');
CREATE TABLE claims (
    number INTEGER NOT NULL, run INTEGER NOT NULL REFERENCES runs, round INTEGER NOT NULL,
    reservation INTEGER NOT NULL REFERENCES reservations, label INTEGER NOT NULL,
    digest BLOB NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (run, round)) WITHOUT ROWID;
INSERT INTO "claims" VALUES(7,3,1,4,1,X'BCBB9D0EEB4961F631C8BBF817B6DA8409BDBD44A4572AEC3E065157074A5DDC',X'C40BF8CC4A142505739F696879ED7E1BE6A1D11BF3667B04BBBEC417C9C75870');
INSERT INTO "claims" VALUES(9,3,2,4,2,X'7AB8026BE138AC27E3C81E9FED3505F496EF2D9AE2C6EEB95AF5C1B2A17FA856',X'F87159B95279DF98BE28F881BBE4DA73D9E35A6B7BD027C949F1FD7D33314726');
INSERT INTO "claims" VALUES(11,3,3,4,0,X'4204E48BD1F77931318D58E69BAAFB042251C94EADCDEAA0ED74AD2547C31608',X'41DC3CE1005B8123846C6D367A228116EE7BA0716C408F8073A849E028CD5619');
INSERT INTO "claims" VALUES(13,3,4,4,1,X'D36F15B2B611C63A1FD8DFEAA20AF02834D9BCBF90FA0CC65E2CA1CA67C5B938',X'69C06CCC854DAC2414EEE31152F4973AA9A7E25478C92D61690D5A3EA131F4AF');
INSERT INTO "claims" VALUES(17,14,1,15,-1,X'5B36B086DA367AC4C7E4AB935704D063CC74175DF660F9DFBCE42246B4B66C55',X'D8A3C4FD73A8498726C1F74C65A27ED1B3AF066AE7C49182D23B17ECDC1730EA');
INSERT INTO "claims" VALUES(24,21,1,22,-1,X'279E7823958AD5CDC3EC6C654B3BB8BB702EE8C9714F0A63B09767E7D3EDD7B3',X'42D78A8DC2049AF9FD1833884AD218C00124586515E34B6866805129F5303D9C');
INSERT INTO "claims" VALUES(31,28,1,29,-1,X'8C136F5143A821D1E7A1A76AC962BBC43DEF9B5877AEEFB56037CE8C74930645',X'D48F9D1681663B046F9CE859DC1CF26F1C66D0B3EFB2E0F13C3BCD1DD9E9F2BA');
INSERT INTO "claims" VALUES(33,28,2,29,-1,X'5FD0A614C4948EBAFE4B7641C5FAA92C8FC8C476CF03B092756C0E224631EF7B',X'A152F8AA71EB3F949393A64B5FC0BBFA833D48482B997D2F9C7DBF449F0774F3');
INSERT INTO "claims" VALUES(35,28,3,29,-1,X'3288665912271EF58D298C276E4F7411ED56883878D20EBF606D61F5ADBBCEEA',X'81E3A31A5C3DD991D8406018CD2FF687FF7EF5011F18B5C5AF560566EDD9FB27');
INSERT INTO "claims" VALUES(37,28,4,29,-1,X'1E935D17ADF32AB16FD467721167885FF309CF4EECC5AF385B584E7A3F5A8007',X'4FE42323F5513162E80071E86096FA07913E5AF4C8875328847CE066E944587C');
INSERT INTO "claims" VALUES(40,28,5,29,-1,X'858AE4B4847196C1713DFC770408B2F7F7D5B1E61BBC5EE64FA559CF45B3E1D6',X'B45A488A68156BAE3B7CDD3A2CDB5669CCDA33B09A6BF8636A4BABA374363F10');
INSERT INTO "claims" VALUES(48,44,1,45,1,X'8E4D4B1FAC7684888A27399A33951FA493081D8FFF4A6D2B7F530310BD10A14E',X'02A0DA2AC4603F622541D74117D0086FDC32D285FFF6B404BE275A5A34D07E95');
INSERT INTO "claims" VALUES(50,44,2,45,2,X'E2A693486FED8F4C95B7AD4C64E29AB1F286BD36F145449D4BCBA3E1C07F209F',X'BE828491AE0EFAF4CB3EBAEE794D2F46015DEF6BFD09531814EC5CDB52B0AD00');
INSERT INTO "claims" VALUES(53,44,3,52,0,X'0278F5A0FE6B661FB076486914F90FF467D3C388B73A11E8BDA8E65B12F575D1',X'354562E1788525EC7E40E0BE3BD93E72E38B35ED290A5F85B88C65CA948FDAE8');
INSERT INTO "claims" VALUES(55,44,4,52,1,X'0049861B0D3AE21A56252C329F690AC1CE6AED43A244832B67EC39A49C18B2B1',X'25B767196888EBDC5A51157A456AB3F4452B19B9B39ABD9C33C15C0545F39A0A');
CREATE TABLE contents (
    number INTEGER NOT NULL, fingerprint BLOB PRIMARY KEY, lineage TEXT NOT NULL,
    seal BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "contents" VALUES(5,X'CB7C7B1A0A781FBBA27FD9E29CDC436A1616EB3D7760808275514B238F071310','ward',X'BCE984C418A3ECB2F5A80217AC38D290D431C24501D2488A712C5173FBCC841B');
INSERT INTO "contents" VALUES(46,X'EBEE8A8B2DDA52BE137384F667957DA2FD4CEECF79BC0E2B18F26BB3E7E615DF','clinic',X'F87A9146E56010D2336D08F9D48B2B4BF17D5D1D48B8DB297671DFDC3DBBF83D');
CREATE TABLE counts (
    reservation INTEGER NOT NULL REFERENCES reservations, label INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    PRIMARY KEY (reservation, label)) WITHOUT ROWID;
INSERT INTO "counts" VALUES(4,0,1);
INSERT INTO "counts" VALUES(4,1,2);
INSERT INTO "counts" VALUES(4,2,1);
INSERT INTO "counts" VALUES(15,-1,1);
INSERT INTO "counts" VALUES(22,-1,1);
INSERT INTO "counts" VALUES(29,-1,5);
INSERT INTO "counts" VALUES(45,1,1);
INSERT INTO "counts" VALUES(45,2,1);
INSERT INTO "counts" VALUES(52,0,1);
INSERT INTO "counts" VALUES(52,1,1);
CREATE TABLE head (number INTEGER NOT NULL, seal BLOB NOT NULL);
INSERT INTO "head" VALUES(56,X'5DB320E22C3340AD90F17C35B8202AC18E22BB743DFDCFA5A75772AEDC37EBB1');
CREATE TABLE instalments (
    number INTEGER PRIMARY KEY, reservation INTEGER NOT NULL REFERENCES reservations,
    reserved INTEGER NOT NULL, epsilon REAL NOT NULL, seal BLOB NOT NULL);
INSERT INTO "instalments" VALUES(39,29,8,3.41023397120263904724e+00,X'927D80A7777C5D1D7FFEBA1812B943F1F576B619D6951432172321E4C6915FF0');
CREATE TABLE prices (
    id INTEGER PRIMARY KEY, plan BLOB UNIQUE, epsilon REAL NOT NULL, seal BLOB NOT NULL);
INSERT INTO "prices" VALUES(1,X'A84A02656A011F4ABE6F82E49652658AA19C10164FABA380BA8674331C5F5B71',1.62734229318630241323e+00,X'C1E6E3C41C6616DA83D8D44207E9AE4632B001D4D6237D6CA255BEFB94A5C868');
INSERT INTO "prices" VALUES(2,X'58A4089BCEB775F85D3F8E7192F13FC4930B9395EBC999580DE9D29E8FE4BF55',1.90570298606209287406e+00,X'025BB8D16332A83EAF9B69F02B6294BA48636131C67E8B16E2BD8E13D142AC63');
INSERT INTO "prices" VALUES(3,X'C0440BF3F13A0BBBD88C20922CEE3924AE9512914DC4CE2F234031ACA854DBB1',4.0,X'BBA137475F07BAF839A6DDC0341C761ABDA6C2D91A58517B4DBA66086C45AA96');
INSERT INTO "prices" VALUES(4,X'135C30D19F1D452A8E5E806DCA5526DEB491CD48A36A9E88D2581416812C8CFB',4.15181672776906740551e+00,X'3EF3D3A09B20009B0402741150F2EC092429A511D90237A7CCD5587F1BFD32F0');
INSERT INTO "prices" VALUES(5,X'7293E8E8D8656C8D6443A69A03C720A2DFBFDAEE64C46CF62B63357249988D73',2.32749545992793338555e+00,X'0B5F37BF40AC5D2EA11DEF68201DEB709553F631C7EEFBD8022C6519286424F1');
INSERT INTO "prices" VALUES(6,X'D8469A9DC7A2E33B9C3F81C3A28BF5E862BEC6E71BD49F13E09192D3410C5F82',3.41023397120263904724e+00,X'668B7D8CE5B9DF991496D804FD2A3709B2F6D94B29CCDE91FBDC23A7BD625326');
CREATE TABLE refusals (
    day INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (day, reason)) WITHOUT ROWID;
INSERT INTO "refusals" VALUES(20000,'BudgetError',2);
INSERT INTO "refusals" VALUES(20000,'RunTakenError',1);
CREATE TABLE releases (
    number INTEGER NOT NULL, run INTEGER NOT NULL, round INTEGER NOT NULL, seal BLOB NOT NULL,
    PRIMARY KEY (run, round), FOREIGN KEY (run, round) REFERENCES claims) WITHOUT ROWID;
INSERT INTO "releases" VALUES(8,3,1,X'25B7EED3BB368EAF18A816270C4F6525E117391A6F0820AA82364229137D917A');
INSERT INTO "releases" VALUES(10,3,2,X'A3A8D9993A9761E86221B7B3D83F0B96ABA4C87E5CC057BFEE55C459F79D4233');
INSERT INTO "releases" VALUES(12,3,3,X'0E8744EE91EB77658FE10741BD3BDCC3B0514B4D69FAB1C3BEEAC4632FF4E867');
INSERT INTO "releases" VALUES(18,14,1,X'002282A6E12EBCEB0561A88529EFC75886623C878690805A2B7F92CA92A3E940');
INSERT INTO "releases" VALUES(25,21,1,X'E7C995B7126249284DD03FFDEFE655829BBFFF1149E31FA6BEE05D3D9694C990');
INSERT INTO "releases" VALUES(32,28,1,X'FFA8B5CAD8A78BA07D43663786E9BDE1352059DC1A67DF1496C0F67015AB66A0');
INSERT INTO "releases" VALUES(34,28,2,X'7C48CCB364DB9B0A3FFC5A4840037C93449C90DF65703E00B672271A7ACC6ACF');
INSERT INTO "releases" VALUES(36,28,3,X'A8F15CBE8278C8E9A42AA55235BBE5107048A1B52B884A2BEADAFF2D92BD07AB');
INSERT INTO "releases" VALUES(38,28,4,X'F2D040D700E637BB7E7CF7A03FFDC35F309B5A7B23C4194EC57B3B11FEE85BA5');
INSERT INTO "releases" VALUES(41,28,5,X'8B004ACD044EB624F4C6443786C55C9983BDEC3B8718C9515A8B5E235B073245');
INSERT INTO "releases" VALUES(49,44,1,X'4B1F507A3122E41EB94674C631B2AE83F9D4DC79C76C64B3208714099F3130A3');
INSERT INTO "releases" VALUES(51,44,2,X'70379EDB54800E947A936EAFEE9EA1C3753E943435AC60DC1223DDE5915F5169');
INSERT INTO "releases" VALUES(54,44,3,X'EC1CABACC614702C7AC64E73CED85620D7816F1A7242A369C76F4096C1EEE513');
INSERT INTO "releases" VALUES(56,44,4,X'5DB320E22C3340AD90F17C35B8202AC18E22BB743DFDCFA5A75772AEDC37EBB1');
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, plan TEXT NOT NULL,
    event TEXT NOT NULL, use TEXT, rounds INTEGER NOT NULL, uses INTEGER NOT NULL,
    epsilon REAL, delta REAL NOT NULL, rho REAL, method TEXT,
    step INTEGER, reserved INTEGER NOT NULL, seal BLOB NOT NULL,
    UNIQUE (run, plan));
INSERT INTO "reservations" VALUES(4,3,'{"adjacency":"add-remove","capacity":null,"clip":{"bound":0.5,"name":"record"},"delta":1e-06,"mode":"central","noise_multiplier":2.0,"nominal_records":null,"rate":0.25,"rounds":12,"schedule":{"classes":3,"name":"class"}}','{"class": "SelfComposedDpEvent", "count": 4, "event": {"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 2.0}, "sampling_probability": 0.25}}','{"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 2.0}, "sampling_probability": 0.25}',12,4,1.62734229318630241323e+00,1.0e-06,NULL,'dp_sinkhorn',NULL,12,X'F96BAAAF8AA5B7FBA16F2620AFB3A0C0CC7F99CBC31DB49D609CDBD0D371153E');
INSERT INTO "reservations" VALUES(15,14,'{"adjacency":"add-remove","aggregation_trusted":true,"capacity":null,"clip":{"bound":0.5,"name":"record"},"delta":1e-06,"fixed_point":{"bits":40,"granularity":9.5367431640625e-07,"radius":1024.0},"mode":"central","noise_multiplier":2.0,"nominal_records":null,"rate":0.25,"rounds":6,"schedule":{"classes":1,"name":"joint"},"share":2,"values":24}','{"class": "SelfComposedDpEvent", "count": 6, "event": {"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 2.0}, "sampling_probability": 0.25}}','{"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 2.0}, "sampling_probability": 0.25}',6,6,1.90570298606209287406e+00,1.0e-06,NULL,'dp_sinkhorn',NULL,6,X'4F70768AE72BD945FD05955ABFBFE558CF898469E11507E71AE178AD252BF15D');
INSERT INTO "reservations" VALUES(22,21,'{"classes":3,"delta":0.0,"epsilon":3.0,"label_epsilon":1.0,"map":{"name":"point_ball","norm":"l1","radius":1.0,"size":4},"mechanism":"laplace","mode":"ldp"}','{"class": "ComposedDpEvent", "events": [{"class": "LaplaceDpEvent", "noise_multiplier": 0.33333333333333337}, {"class": "RandomizedResponseDpEvent", "noise_parameter": 0.6358246728512564, "num_buckets": 3}]}',NULL,1,1,4.0,0.0,NULL,'privatize_once',NULL,1,X'33C85514C9CFE8CF0DF1FA82973624E3E39EF59FBDA24F0B3852CC225A7F52BA');
INSERT INTO "reservations" VALUES(29,28,'{"adjacency":"client","capacity":null,"clip":{"bound":0.5,"name":"batch"},"delta":1e-06,"mode":"central","noise_multiplier":4.0,"nominal_records":null,"rate":1.0,"rounds":12,"schedule":{"classes":1,"name":"joint"}}','{"class": "SelfComposedDpEvent", "count": 12, "event": {"class": "GaussianDpEvent", "noise_multiplier": 4.0}}','{"class": "GaussianDpEvent", "noise_multiplier": 4.0}',12,12,2.32749545992793338555e+00,2.0e-06,NULL,'dp_sinkhorn',4,4,X'3F1BF4FD8580F19FCD5C4C03A8E490C6D6D9CA22F52E613B2E5B68CC292A88B2');
INSERT INTO "reservations" VALUES(45,44,'{"adjacency":"add-remove","capacity":null,"clip":{"bound":0.5,"name":"record"},"delta":1e-06,"mode":"central","noise_multiplier":2.0,"nominal_records":null,"rate":0.25,"rounds":12,"schedule":{"classes":3,"name":"class"}}','{"class": "SelfComposedDpEvent", "count": 4, "event": {"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 2.0}, "sampling_probability": 0.25}}','{"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 2.0}, "sampling_probability": 0.25}',12,4,NULL,1.0e-06,1.07709695053602158565e-01,'dp_sinkhorn',NULL,12,X'53B459B14AE1CABBE61F6F05D99A40B69ADEB75CC098DB15FB407EF12EE5CA61');
INSERT INTO "reservations" VALUES(52,44,'{"adjacency":"add-remove","capacity":null,"clip":{"bound":0.5,"name":"record"},"delta":1e-06,"mode":"central","noise_multiplier":3.0,"nominal_records":null,"rate":0.25,"rounds":12,"schedule":{"classes":3,"name":"class"}}','{"class": "SelfComposedDpEvent", "count": 4, "event": {"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 3.0}, "sampling_probability": 0.25}}','{"class": "PoissonSampledDpEvent", "event": {"class": "GaussianDpEvent", "noise_multiplier": 3.0}, "sampling_probability": 0.25}',12,4,NULL,1.0e-06,3.39209805309424253239e-02,'dp_sinkhorn',NULL,12,X'5BEE445DD43126A18A99C0F9F800B0406A4D50D5D15960E279EC136C2958215B');
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts, name TEXT NOT NULL,
    operator TEXT, day INTEGER, seal BLOB NOT NULL,
    UNIQUE (account, name));
INSERT INTO "runs" VALUES(3,1,'whole',NULL,20000,X'13589A48AE511C3989324B55B75FF3E9D40CE4409BE068512CCF52B0875A8A09');
INSERT INTO "runs" VALUES(14,1,'shared',NULL,20000,X'58EFFA3FA15C8BFF1D80C8D7C28838973EA4152F0693A2F143A5B4D6A423A299');
INSERT INTO "runs" VALUES(21,19,'upload',NULL,20000,X'80B23F9B446B61CA58F3D24790051A73656AECEC45ECD52F7AE42039E8D863FE');
INSERT INTO "runs" VALUES(28,26,'parts',NULL,20000,X'E3653A4C48DA6CAB238095B4484ABA8B934BB72AA062674C12534897F11EA3CA');
INSERT INTO "runs" VALUES(44,42,'free',NULL,20000,X'0741E411C1238C3140457FCE66E41434326E95621D349128501EB36A262CE7BD');
CREATE TABLE sources (
    number INTEGER NOT NULL, run INTEGER PRIMARY KEY REFERENCES runs,
    fingerprint BLOB NOT NULL REFERENCES contents, seal BLOB NOT NULL);
INSERT INTO "sources" VALUES(6,3,X'CB7C7B1A0A781FBBA27FD9E29CDC436A1616EB3D7760808275514B238F071310',X'0C6F1A5CA5018CA0CBA703B676EBA148CD2CE1969D8DAC56D2D14AD7FA347273');
INSERT INTO "sources" VALUES(16,14,X'CB7C7B1A0A781FBBA27FD9E29CDC436A1616EB3D7760808275514B238F071310',X'7CF0AD8B4F294C888B5720AC49BEDD669A5E07874AEB630A6160DC21A827A4A7');
INSERT INTO "sources" VALUES(23,21,X'CB7C7B1A0A781FBBA27FD9E29CDC436A1616EB3D7760808275514B238F071310',X'C0B8BA4B05C87DC7300A8CE859BF771145F7FFC9C59798D5E0061DCA6CD95D59');
INSERT INTO "sources" VALUES(30,28,X'CB7C7B1A0A781FBBA27FD9E29CDC436A1616EB3D7760808275514B238F071310',X'ACF9E7C70697CC0F782C4A755DA5BBAEE6A2B894FA4F8148BC058356006F8B35');
INSERT INTO "sources" VALUES(47,44,X'EBEE8A8B2DDA52BE137384F667957DA2FD4CEECF79BC0E2B18F26BB3E7E615DF',X'39532CA0830372DDF0DE991214D50BBAFAE139228DDDD720538859EB7810B30B');
CREATE VIEW charged AS
    SELECT reservations.id AS id, run, plan, event, use, rounds, uses, delta, rho, method, step,
        COALESCE(MAX(instalments.reserved), reservations.reserved) AS reserved,
        COALESCE(MAX(instalments.epsilon), reservations.epsilon) AS epsilon
    FROM reservations LEFT JOIN instalments ON reservation = reservations.id
    GROUP BY reservations.id;
COMMIT;
